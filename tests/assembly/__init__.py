"""Tests of what a configuration says, part by part."""
