"""Who is asking: tokens and keys, and what makes sure of them.

Read in this order: proof (what is made sure of); claims (what a token must say); signatures and
key_sets (whose it is); key_file (keys that the gateway gives out itself); verifier (all of them);
failures and metadata; guard, which stands at the HTTP door.
"""
