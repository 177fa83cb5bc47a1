"""The composition root: builds a gateway from a configuration, runs, reloads and controls it."""
