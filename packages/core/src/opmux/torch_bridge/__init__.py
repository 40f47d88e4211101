"""What torch needs to know of an op: registration, autograd, functorch, and the routes of calls that are not plain."""
