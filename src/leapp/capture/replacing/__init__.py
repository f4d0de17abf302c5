"""Replacing names, functions and classes of other modules for a while, and putting them back.

Mechanism only: nothing here knows sessions, tapes or arrays.
"""
