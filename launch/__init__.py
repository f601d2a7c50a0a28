"""What is run from a checkout: the shell entry points, the quickstart's model and data, the recipe, scaling experiments.

The package never imports it; tests do.
"""
