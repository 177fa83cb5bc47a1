"""Administration: inspect a running gateway, and stop and revive parts of it."""
