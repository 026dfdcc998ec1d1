"""Less to send: gradients that are compressed before ranks exchange them."""
