"""Built-in mappers: what decides where each task runs when a program does not say."""

from __future__ import annotations
