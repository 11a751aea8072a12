"""Labels with the terms that they mean, each looked up in the Cell Ontology by hand.

``None``: no term means this, several do, or it depends on where the cells are from.
"""

from __future__ import annotations

# PBMCs of Kang et al. (2018).
KANG: dict[str, str | None] = {
    "B cells": "CL:0000236",  # B cell
    "CD14+ Monocytes": "CL:0001054",  # CD14-positive monocyte
    "CD4 T cells": "CL:0000624",  # CD4-positive, alpha-beta T cell
    "CD8 T cells": "CL:0000625",  # CD8-positive, alpha-beta T cell
    "FCGR3A+ Monocytes": "CL:0000875",  # non-classical monocyte
}

# PBMCs of Zheng et al. (2017), as in scanpy.
PBMC68K: dict[str, str | None] = {
    "CD4+/CD25 T Reg": "CL:0000792",  # CD4-positive, CD25-positive, alpha-beta regulatory T cell
    "CD4+/CD45RA+/CD25- Naive T": "CL:0000895",  # naive thymus-derived CD4-positive …
    "CD4+/CD45RO+ Memory": "CL:0001204",  # CD4-positive, alpha-beta memory T cell, CD45RO-positive
    "CD8+ Cytotoxic T": "CL:0000794",  # CD8-positive, alpha-beta cytotoxic T cell
    "CD8+/CD45RA+ Naive Cytotoxic": "CL:0000900",  # naive thymus-derived CD8-positive …
    "CD14+ Monocyte": "CL:0001054",  # CD14-positive monocyte
    "CD19+ B": "CL:0001201",  # B cell, CD19-positive
    "CD34+": None,
    "CD56+ NK": "CL:0000623",  # natural killer cell
    "Dendritic": "CL:0000451",  # dendritic cell
}

# Cell lines of Tian et al. (2019).
LUNG: dict[str, str | None] = {
    "H1975": None,
    "H2228": None,
    "HCC827": None,
}

# Breast tissue of Komen Tissue Bank and GTEx.
BREAST: dict[str, str | None] = {
    "Epithelial cells": "CL:0000066",  # epithelial cell
    "Monocytes": "CL:0000576",  # monocyte
    "Fibroblast": "CL:0000057",  # fibroblast
    "T cell": "CL:0000084",  # T cell
    "NK cells": "CL:0000623",  # natural killer cell
    "Endothelial cells": "CL:0000115",  # endothelial cell
    "Pericytes": "CL:0000669",  # pericyte
}

# Stomach and intestine of the mouse (Han et al., 2018).
GUT: dict[str, str | None] = {
    "Pit cell": None,
    "Squamous epithelium": None,
    "Proliferating epithelial cell": None,
    "Epithelial cell": "CL:0000066",  # epithelial cell
    "Fibroblast": "CL:0000057",  # fibroblast
    "Endocrine cell": "CL:0000163",  # endocrine cell
    "Parietal cell": "CL:0000162",  # parietal cell
    "Macrophage": "CL:0000235",  # macrophage
    "Dendritic cell": "CL:0000451",  # dendritic cell
    "Chief cell": "CL:0000155",  # peptic cell
    "Smooth muscle cell": "CL:0000192",  # smooth muscle cell
    "Tuft cell": "CL:0002204",  # tuft cell
    "Endothelial cell": "CL:0000115",  # endothelial cell
    "Paneth cell": "CL:0000510",  # paneth cell
    "T cell": "CL:0000084",  # T cell
    "Erythroid cell": "CL:0000764",  # erythroid lineage cell
    "B cell": "CL:0000236",  # B cell
    "Mast cell": "CL:0000097",  # mast cell
    "Enterocyte": "CL:0000584",  # enterocyte
    "Goblet cell": "CL:0000160",  # goblet cell
    "Enteroendocrine cell": "CL:0000164",  # enteroendocrine cell
    "Plasmacytoid dendritic cell": "CL:0000784",  # plasmacytoid dendritic cell
}

# Labels of CellTypist's model of immune cells, "Immune_All_Low".
IMMUNE: dict[str, str | None] = {
    "Age-associated B cells": "CL:4033094",  # age-associated B cell
    "Alveolar macrophages": "CL:0000583",  # alveolar macrophage
    "B cells": "CL:0000236",  # B cell
    "CD16+ NK cells": "CL:0000939",  # CD16-positive, CD56-dim natural killer cell, human
    "CD16- NK cells": "CL:0000938",  # CD16-negative, CD56-bright natural killer cell, human
    "CD8a/a": None,
    "CD8a/b(entry)": None,
    "CMP": "CL:0000049",  # common myeloid progenitor
    "CRTAM+ gamma-delta T cells": "CL:0000798",  # gamma-delta T cell
    "Classical monocytes": "CL:0000860",  # classical monocyte
    "Cycling B cells": "CL:4033068",  # cycling B cell
    "Cycling DCs": "CL:4033070",  # cycling dendritic cell
    "Cycling NK cells": None,
    "Cycling T cells": "CL:4033069",  # cycling T cell
    "Cycling gamma-delta T cells": "CL:4033072",  # cycling gamma-delta T cell
    "Cycling monocytes": "CL:4033073",  # cycling monocyte
    "DC": "CL:0000451",  # dendritic cell
    "DC precursor": None,
    "DC1": "CL:0002394",  # CD141-positive myeloid dendritic cell
    "DC2": "CL:0002399",  # CD1c-positive myeloid dendritic cell
    "DC3": None,
    "Double-negative thymocytes": "CL:0002489",  # double negative thymocyte
    "Double-positive thymocytes": "CL:0000809",  # double-positive, alpha-beta thymocyte
    "ELP": "CL:0000936",  # early lymphoid progenitor
    "ETP": "CL:0002425",  # early T lineage precursor
    "Early MK": None,
    "Early erythroid": None,
    "Early lymphoid/T lymphoid": None,
    "Endothelial cells": "CL:0000115",  # endothelial cell
    "Epithelial cells": "CL:0000066",  # epithelial cell
    "Erythrocytes": "CL:0000232",  # erythrocyte
    "Erythrophagocytic macrophages": "CL:0000235",  # macrophage
    "Fibroblasts": "CL:0000057",  # fibroblast
    "Follicular B cells": "CL:0000843",  # follicular B cell
    "Follicular helper T cells": "CL:0002038",  # T follicular helper cell
    "GMP": "CL:0000557",  # granulocyte monocyte progenitor cell
    "Germinal center B cells": "CL:0000844",  # germinal center B cell
    "Granulocytes": "CL:0000094",  # granulocyte
    "HSC/MPP": None,
    "Hofbauer cells": "CL:3000001",  # Hofbauer cell
    "ILC": "CL:0001065",  # innate lymphoid cell
    "ILC precursor": None,
    "ILC1": "CL:0001068",  # ILC1
    "ILC2": "CL:0001069",  # group 2 innate lymphoid cell
    "ILC3": "CL:0001071",  # group 3 innate lymphoid cell
    "Intermediate macrophages": None,
    "Intestinal macrophages": None,
    "Kidney-resident macrophages": "CL:1000698",  # kidney resident macrophage
    "Kupffer cells": "CL:0000091",  # Kupffer cell
    "Large pre-B cells": "CL:0000957",  # large pre-B-II cell
    "Late erythroid": None,
    "MAIT cells": "CL:0000940",  # mucosal-associated invariant T cell
    "MEMP": None,
    "MNP": "CL:0000113",  # mononuclear phagocyte
    "Macrophages": "CL:0000235",  # macrophage
    "Mast cells": "CL:0000097",  # mast cell
    "Megakaryocyte precursor": None,
    "Megakaryocyte-erythroid-mast cell progenitor": None,
    "Megakaryocytes/platelets": None,
    "Memory B cells": "CL:0000787",  # memory B cell
    "Memory CD4+ cytotoxic T cells": None,
    "Mid erythroid": None,
    "Migratory DCs": "CL:4047054",  # migratory dendritic cell
    "Mono-mac": None,
    "Monocyte precursor": None,
    "Monocytes": "CL:0000576",  # monocyte
    "Myelocytes": "CL:0002193",  # myelocyte
    "NK cells": "CL:0000623",  # natural killer cell
    "NKT cells": "CL:0000814",  # mature NK T cell
    "Naive B cells": "CL:0000788",  # naive B cell
    "Neutrophil-myeloid progenitor": None,
    "Neutrophils": "CL:0000775",  # neutrophil
    "Non-classical monocytes": "CL:0000875",  # non-classical monocyte
    "Plasma cells": "CL:0000786",  # plasma cell
    "Plasmablasts": "CL:0000980",  # plasmablast
    "Pre-pro-B cells": None,
    "Pro-B cells": "CL:0000826",  # pro-B cell
    "Proliferative germinal center B cells": "CL:0000844",  # germinal center B cell
    "Promyelocytes": "CL:0000836",  # promyelocyte
    "Regulatory T cells": "CL:0000815",  # regulatory T cell
    "Small pre-B cells": "CL:0000954",  # small pre-B-II cell
    "T(agonist)": None,
    "Tcm/Naive cytotoxic T cells": None,
    "Tcm/Naive helper T cells": None,
    "Tem/Effector helper T cells": None,
    "Tem/Effector helper T cells PD1+": None,
    "Tem/Temra cytotoxic T cells": None,
    "Tem/Trm cytotoxic T cells": None,
    "Transitional B cells": "CL:0000818",  # transitional stage B cell
    "Transitional DC": None,
    "Transitional NK": None,
    "Treg(diff)": None,
    "Trm cytotoxic T cells": None,
    "Type 1 helper T cells": "CL:0000545",  # T-helper 1 cell
    "Type 17 helper T cells": "CL:0000899",  # T-helper 17 cell
    "gamma-delta T cells": "CL:0000798",  # gamma-delta T cell
    "pDC": "CL:0000784",  # plasmacytoid dendritic cell
    "pDC precursor": None,
}

# Labels in the style of CellTypist's models of other tissues.
OTHERS: dict[str, str | None] = {
    "Club cells": "CL:0000158",  # club cell
    "Paneth cells": "CL:0000510",  # paneth cell
    "Alveolar type 1 cells": "CL:0002062",  # pulmonary alveolar type 1 cell
    "AT2": "CL:0002063",  # pulmonary alveolar type 2 cell
    "Ciliated cells": "CL:0000064",  # ciliated cell
    "Alpha cells": "CL:0000171",  # pancreatic A cell
    "Beta cells": "CL:0000169",  # type B pancreatic cell
    "Hepatocytes": "CL:0000182",  # hepatocyte
    "Cholangiocytes": "CL:1000488",  # cholangiocyte
    "Astrocytes": "CL:0000127",  # astrocyte
    "Oligodendrocyte precursor cells": "CL:0002453",  # oligodendrocyte precursor cell
    "OPCs": "CL:0002453",  # oligodendrocyte precursor cell
    "Microglia": "CL:0000129",  # microglial cell
    "Purkinje cells": "CL:0000121",  # Purkinje cell
    "Cardiomyocytes": "CL:0000746",  # cardiac muscle cell
    "Adipocytes": "CL:0000136",  # adipocyte
    "Podocytes": "CL:0000653",  # podocyte
    "Lymphatic endothelial cells": "CL:0002138",  # endothelial cell of lymphatic vessel
    "Vascular smooth muscle cells": "CL:0000359",  # vascular associated smooth muscle cell
    "Keratinocytes": "CL:0000312",  # keratinocyte
    "Melanocytes": "CL:0000148",  # melanocyte
    "Schwann cells": "CL:0002573",  # Schwann cell
    "Goblet cells": "CL:0000160",  # goblet cell
    "Enteroendocrine cells": "CL:0000164",  # enteroendocrine cell
    "Basal cells": "CL:0000646",  # basal cell
    "Stellate cells": None,
    "Ionocytes": "CL:0005006",  # ionocyte
    "Rod photoreceptors": "CL:0000604",  # retinal rod cell
    "Excitatory neurons": None,
    "Inhibitory neurons": None,
    "Sertoli cells": "CL:0000216",  # Sertoli cell
    "Leydig cells": "CL:0000178",  # Leydig cell
    "Osteoblasts": "CL:0000062",  # osteoblast
    "Chondrocytes": "CL:0000138",  # chondrocyte
    "Satellite cells": "CL:0000594",  # skeletal muscle satellite cell
    "Principal cells": "CL:0005009",  # renal principal cell
    "Intercalated cells": "CL:0005010",  # renal intercalated cell
    "Mesothelial cells": "CL:0000077",  # mesothelial cell
    "Plasma B": "CL:0000786",  # plasma cell
    "Myofibroblasts": "CL:0000186",  # myofibroblast cell
    "CD8+ T cells": "CL:0000625",  # CD8-positive, alpha-beta T cell
    "Naive CD4 T cells": "CL:0000895",  # naive thymus-derived CD4-positive …
    "Th17 cells": "CL:0000899",  # T-helper 17 cell
    "Treg": "CL:0000815",  # regulatory T cell
    "Mural cells": "CL:0008034",  # mural cell
    "Radial glia": "CL:0000681",  # radial glial cell
    "Intermediate monocytes": "CL:0002393",  # intermediate monocyte
    "Proximal tubule cells": "CL:0002306",  # epithelial cell of proximal tubule
    "LSEC": "CL:1000398",  # endothelial cell of hepatic sinusoid
    "Platelets": "CL:0000233",  # platelet
    "Basophils": "CL:0000767",  # basophil
    "Eosinophils": "CL:0000771",  # eosinophil
}
