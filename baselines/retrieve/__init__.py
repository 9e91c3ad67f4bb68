"""Any model: opened, encoded, indexed, searched, re-ranked."""
