"""One hop: the same fast server behind nothing, nginx, Trunkline and other gateways, in one run."""
