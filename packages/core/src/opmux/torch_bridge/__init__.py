"""What torch needs to know about an op: registration, autograd, functorch, and routing of calls off the fast path."""
