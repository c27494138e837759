"""Deploys of the code of pipelines."""
