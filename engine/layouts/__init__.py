"""How caches hold many rows: one port, one implementation a kind."""
