"""Peers: tiles between the devices of ranks that share a host, through memory that they open of each other.

Meetings find out what each pair can open, rings are the places that a sender has there, and peer tiles are one rank's
ends of them all. What is written and read there is staged by ``storage``; the copy engine says when.
"""
