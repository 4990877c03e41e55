"""From a finished trajectory to a grade: extract the answer, compare it, never let our failure become a reward."""
