"""Decisions about calls: names, visibility, policy and limits. Pure; time is an argument."""
