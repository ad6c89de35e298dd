"""Other people's algorithms and tools, each behind one adapter file that is imported only when somebody names it."""
