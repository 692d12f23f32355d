# Writes a C file that holds the bytes of other files: cmake -DOUTPUT=x.c -DFOLDER=page "-DFILES=a.css;b.js" -P embed.cmake
# src/view/embedded.h declares what it defines.
set(arrays "")
set(entries "")
set(count 0)
foreach(name ${FILES})
    file(READ ${FOLDER}/${name} bytes HEX)
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
    string(REGEX REPLACE "(................................................................................)" "\\1\n" bytes "${bytes}")
    string(APPEND arrays "static const unsigned char file_${count}[] = {\n${bytes}\n};\n")
    string(APPEND entries "    {\"${name}\", file_${count}, sizeof file_${count}},\n")
    math(EXPR count "${count} + 1")
endforeach()
file(WRITE ${OUTPUT} "/* Made by cmake/embed.cmake. */\n#include \"view/embedded.h\"\n\n${arrays}
const agv_embedded agv_embedded_files[] = {\n${entries}};\nconst int agv_embedded_count = ${count};\n")
