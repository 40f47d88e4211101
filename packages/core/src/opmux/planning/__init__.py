"""From a call to a plan: candidates, the resolver, refusals, explanations."""
