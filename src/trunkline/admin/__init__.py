"""Administration: inspect a running gateway, and disable and revive parts of it."""
