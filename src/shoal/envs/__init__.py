"""A simulation before it meets a policy: making it, its spaces, stepping many of it, checking it."""
