"""What is said: one module a protocol of frozen messages, and the mailbox."""
