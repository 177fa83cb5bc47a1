"""The doing: sessions, upstreams and what joins them. asyncio, but no sockets and no files."""
