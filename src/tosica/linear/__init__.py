"""Fit the linear branch: logistic regressions whose weights go through gene sets."""
