"""A trained policy behind a door: observations in, actions out, over HTTP and a Unix socket."""
