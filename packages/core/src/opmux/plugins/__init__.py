"""Plugins: hooks, discovery by entry point, reading and checking, registration, recorded failures, loading.

`loading` is the entry point: it runs the others in this order. Code that must run once plugins are loaded subscribes to
it.
"""
