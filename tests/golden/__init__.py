"""Numbers that a change must not move unsaid."""
