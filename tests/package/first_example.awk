# The first ```c block of a document.
/^```c$/ && !seen { inside = seen = 1; next }
/^```$/ { inside = 0 }
inside
