"""Speculative decoding with the target: what a drafter is worth when it is served.

In: a drafter, a target with its cache, prompts. Out: an EvaluationReport per prompt set, and draft trees with their exact
acceptance for anyone who has log-probabilities. Nothing here trains, and nothing here knows how training works.
"""
