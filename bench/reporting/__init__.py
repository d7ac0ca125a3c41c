"""What people read of a run: tables, figures, words, exports. No torch here."""
