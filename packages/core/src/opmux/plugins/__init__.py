"""Plugins: hook specifications, discovery by entry point, checks, registration, recorded failures."""
