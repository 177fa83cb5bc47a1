"""The gateway: sessions, upstreams and the calls between them. It opens no sockets and no files."""
