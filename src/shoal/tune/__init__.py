"""Many runs: Ray Tune's schedulers and searchers over experiments or functions of the user's own."""
