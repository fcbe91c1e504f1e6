"""What commands share: words into options, answers into lines and tables."""
