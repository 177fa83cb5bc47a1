"""Tests of trunkline.app: building a gateway from a configuration, and reloading it."""
