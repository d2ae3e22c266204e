"""One per version of the schema: the same statements as ``twicesafe migrate``."""
