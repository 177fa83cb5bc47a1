"""What the tables about metrics, traces and the log say, and do not say."""

import pytest

from trunkline.config import LogSettings, MetricsSettings, TracesSettings


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        (MetricsSettings(), None),
        (MetricsSettings(path="/m"), "/m"),
        (MetricsSettings(listen="127.0.0.1:1"), "/metrics"),
        (MetricsSettings(listen="127.0.0.1:1", path="/m"), "/m"),
    ],
)
def test_metrics_are_nowhere_unless_they_were_asked_for(
    settings: MetricsSettings, place: str | None
) -> None:
    assert settings.place == place


def test_printing_shows_no_secret() -> None:
    shown = repr(MetricsSettings(path="/m", token="s3cret"))
    shown += repr(TracesSettings(endpoint="http://h?key=s3cret", headers={"x": "s3cret"}))
    assert "s3cret" not in shown


def test_what_is_quiet_is_the_default() -> None:
    assert TracesSettings().endpoint is None
    assert (LogSettings().format, LogSettings().level) == ("auto", None)
