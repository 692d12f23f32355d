/* The two sources of the command's page: the worked example, and arrays of the user's. */
#ifndef ATTNGRAD_CLI_VIEW_PAGE_H
#define ATTNGRAD_CLI_VIEW_PAGE_H

#include "view/view.h"

/* Fills in the page of the worked example, the whole layer with all maps. page is zero at first. */
ag_status view_example(agv_page *page);

#endif
