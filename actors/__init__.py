"""Who acts: one module an actor, each a loop over its own mailbox."""
