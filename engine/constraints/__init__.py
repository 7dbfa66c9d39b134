"""Structured output: what a row's text must match, and how its tokens are held to it."""
