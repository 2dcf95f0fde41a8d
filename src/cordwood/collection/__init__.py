"""A searchable log: operations on documents, an index of them, and a cursor between the two."""
