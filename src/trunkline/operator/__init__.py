"""The operator's side: how the gateway is, what happened, and what is to be stopped."""
