"""The built manual, in `site/`: `make docs` builds it, then runs these tests.

Zensical reports broken links and anchors. It says nothing of a page that the navigation leaves out,
of a navigation entry without a page, and of images that do not exist.
"""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[1]
SITE = ROOT / "site"

LOADING = {
    "audio": ("src",),
    "embed": ("src",),
    "iframe": ("src",),
    "image": ("href",),
    "img": ("src", "srcset"),
    "input": ("src",),
    "link": ("href",),
    "object": ("data",),
    "script": ("src",),
    "source": ("src", "srcset"),
    "track": ("src",),
    "use": ("href",),
    "video": ("src", "poster"),
}
"""Elements for which a browser loads a URL without a click, with the attributes that name it."""

NOT_LOADED = {"canonical", "next", "prev"}
"""Relations of `<link>` that a browser does not follow on its own."""

IN_STYLES = re.compile(r"""(?:url\(|@import)\s*["']?([^"')\s;]+)""")

LOADS_SCRIPTS = re.compile(r"mermaid|glightbox|pyodide|md-exec")
"""Elements for which the script of Zensical loads a library from another host."""


class LoadedUrls(HTMLParser):
    """Collects the URLs that a browser loads when it shows a page."""

    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []
        self.style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.style = tag == "style"
        if tag == "link" and NOT_LOADED.issuperset(values.get("rel", "").split()):
            return
        for name in LOADING.get(tag, ()):
            for candidate in values.get(name, "").split(","):
                self.urls += candidate.split()[:1]
        self.urls += IN_STYLES.findall(values.get("style", ""))
        if LOADS_SCRIPTS.search(values.get("class", "") + " ".join(values)):
            self.urls.append(f"//unpkg.com, for {self.get_starttag_text()}")
        if values.get("data-md-component") == "source":
            self.urls.append("//api.github.com, for the repository in the header")

    def handle_data(self, data: str) -> None:
        if self.style:
            self.urls += IN_STYLES.findall(data)


def loaded_urls(file: Path) -> list[str]:
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".css":
        return IN_STYLES.findall(text)
    parser = LoadedUrls()
    parser.feed(text)
    return parser.urls


def is_on_another_host(url: str) -> bool:
    parts = urlsplit(url)
    return bool(parts.netloc) or parts.scheme not in {"", "data"}


@pytest.fixture(scope="module")
def files() -> list[Path]:
    found = sorted([*SITE.rglob("*.html"), *SITE.rglob("*.css"), *SITE.rglob("*.svg")])
    assert len(found) > 60, "build the manual first: make docs"
    return found


@pytest.mark.parametrize(
    "html",
    [
        '<script src="https://unpkg.com/iframe-worker/shim"></script>',
        '<link rel="stylesheet" href="//fonts.example/css">',
        '<link rel="preconnect" href="https://fonts.example">',
        '<img src="a.png" srcset="a.png 1x, https://cdn.example/a.png 2x">',
        '<style>@import "https://fonts.example/css";</style>',
        '<p style="background: url(https://cdn.example/a.png)"></p>',
        '<pre class="mermaid">graph</pre>',
        '<a data-md-component="source" href="https://github.com/x/y"></a>',
    ],
)
def test_a_url_that_is_loaded_from_another_host_is_recognised(html: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(html, encoding="utf-8")
    assert any(map(is_on_another_host, loaded_urls(page)))


def test_a_link_to_another_host_is_no_request(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(
        '<a href="https://example.com">x</a><link rel="canonical" href="https://example.com">',
        encoding="utf-8",
    )
    assert not any(map(is_on_another_host, loaded_urls(page)))


def test_no_page_loads_anything_from_another_host(files: list[Path]) -> None:
    found = {
        (file.name, url) for file in files for url in loaded_urls(file) if is_on_another_host(url)
    }
    assert found == set()


def test_every_file_that_a_page_loads_exists(files: list[Path]) -> None:
    missing: set[tuple[str, str]] = set()
    for file in files:
        for url in loaded_urls(file):
            path = unquote(urlsplit(url).path)
            base = SITE if path.startswith("/") else file.parent
            here = not is_on_another_host(url) and not url.startswith("data:")
            if here and path and not (base / path.lstrip("/")).exists():
                missing.add((file.name, url))
    assert missing == set()


def test_every_page_has_our_style(files: list[Path]) -> None:
    pages = [file for file in files if file.suffix == ".html"]
    assert [
        page for page in pages if not any("extra.css" in url for url in loaded_urls(page))
    ] == []


def test_the_navigation_has_every_page_once() -> None:
    listed = re.findall(r"^ +- .*: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = [str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")]
    assert sorted(listed) == sorted(pages)


def test_the_search_knows_every_page(files: list[Path]) -> None:
    index = (SITE / "search.json").read_text(encoding="utf-8")
    pages = {str(file.relative_to(SITE)) for file in files if file.suffix == ".html"} - {"404.html"}
    assert [page for page in sorted(pages) if f'"{page}' not in index] == []
