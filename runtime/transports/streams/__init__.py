"""Streams of tiles: plain TCP beside ZeroMQ, for the bytes of large tiles.

`tile_streams` has what a transport asks for, and says how both ends prove themselves; `outlet` is a stream's end at its
sender, `inlet` that at its receiver, with the messages that wait for what it brings.
"""

from __future__ import annotations
