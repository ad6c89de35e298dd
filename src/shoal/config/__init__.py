"""What the user may say: YAML, `--set`, Python and samples of a search make one tree, which is checked once.

`settings` holds every key with its meaning, `experiment` turns trees and files into checked experiments.
"""
