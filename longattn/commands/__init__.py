"""The subcommands of `longattn`. A new one is a file in this folder; its class is found by discovery."""

from __future__ import annotations
