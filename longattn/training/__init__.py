"""Training: the Lightning module, optimisation, metrics, and what a run writes into its folder."""

from __future__ import annotations
