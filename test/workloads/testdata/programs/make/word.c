const char *word = "world";
