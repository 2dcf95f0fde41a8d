"""The command `cordwood`: nouns and verbs over the blocking twins, for people and for programs."""
