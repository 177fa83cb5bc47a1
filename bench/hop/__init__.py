"""One hop: the same fast server behind nothing, nginx, Trunkline and every peer, in one run."""
