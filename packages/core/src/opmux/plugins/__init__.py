"""Plugins: hooks, discovery by entry point, reading and checking, registration, recorded failures, loading.

`loading` is the door: it runs the others in this order, and those who must act once plugins are loaded subscribe to it.
"""
