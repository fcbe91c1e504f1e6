"""Where caches outside this process keep bytes: each file implements engine/shared_cache.py's Store."""
